"""The pages at `/`: views of the API as HTML, live by server-sent events. Nothing here decides or computes anew."""
