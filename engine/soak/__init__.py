"""The servers as real processes, under random traffic and random faults, for as long as one likes: `tidegate soak`."""
