"""What drafts: n-gram drafter, outcome prediction, fan-out, Saguaro sampling, speculation cache, backups."""
