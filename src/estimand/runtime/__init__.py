"""What a run is carried by: tasks, checkpoint, progress, interruption and clock."""
