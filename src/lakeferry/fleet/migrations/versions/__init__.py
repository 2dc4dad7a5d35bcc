"""One module for each migration; what was released is never changed."""
