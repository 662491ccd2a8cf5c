"""The web pages at `/`: views of the API as HTML, updated by server-sent events.

This package makes no decisions.
"""
