"""Patches the SGLang of an image so that its speculation threshold can be changed while it serves.

Standard library only: the package runs inside whatever image the user brought. The order of work is
`locate` (which files will the server load) → `pristine` (what they were before any patch) → `layouts` and `edit` (the
hooks, by syntax tree) → `tree` (a patched copy) or `inplace` (the files themselves, with a way back), all or nothing →
`gate` (a fresh interpreter proves it) → `result` (one line for machines).
"""
