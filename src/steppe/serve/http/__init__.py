"""The endpoint over HTTP: a raw ASGI application with two protocols, metrics and a page."""
