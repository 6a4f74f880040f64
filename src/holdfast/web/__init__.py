"""Serves the built page (T3-T5); its source is ui/ at the root."""

from holdfast.web.routes import is_page_built, page_routes

__all__ = ["is_page_built", "page_routes"]
