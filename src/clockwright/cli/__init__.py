"""Placeholder."""
def main() -> int: return 0
