"""Patches the SGLang of an image so that its speculation threshold can be changed while it serves.

Standard library only: the package runs inside whatever image the user brought. The order of work is
`locate` (which files will the server load) → `layouts` and `edit` (the hooks, by syntax tree) → `tree`
(a complete patched copy, all or nothing) → `gate` (a fresh interpreter proves it) → `result` (one line for
machines).
"""
