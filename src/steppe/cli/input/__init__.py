"""How commands read what people type."""
