"""Building blocks of pages: badges, fragments, colours, and numbers as text."""
