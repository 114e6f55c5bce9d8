"""What a run tells at its end: its report, its league, what its robots looked at."""
