"""The kopf edge: events come in, work is queued, nothing is decided here."""
