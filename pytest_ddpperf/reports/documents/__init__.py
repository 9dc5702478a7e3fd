"""JSON documents of reports, as types: builders are checked against them, and the published schemas come from them."""
