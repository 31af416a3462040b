"""What a decode step costs: curves by batch size and mode, named or from a file. Needs the standard library only."""
