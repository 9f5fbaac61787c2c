"""Plans a run for `eyas plan`: finished stages, stages that would run, and their hours, bytes and money."""
