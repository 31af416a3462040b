"""Stands in for an installed SGLang where only its command line and HTTP interface matter."""
