"""The endpoint over HTTP: two protocols, observability and a page, as one raw ASGI application."""
