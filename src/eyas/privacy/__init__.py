"""Personal data and secrets in prompts: found by detectors, then dropped with the record or replaced by surrogates."""
