"""A result in other programs' forms: tables, traces, and what experiment trackers and peers' plots read."""
