"""The seven task families of the embedded target, one writer each: `write(rng) -> messages`."""
