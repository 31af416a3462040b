"""A simulated SGLang engine: real command line and HTTP interface, step times from measured curves.

It exists for tests and demonstrations on machines without a GPU and is no part of the product's own image.
"""
