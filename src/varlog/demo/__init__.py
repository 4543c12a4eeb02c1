"""`varlog demo`: a cluster of real processes, killed in front of your eyes, and the proof that nothing was lost."""
