"""The protocol of FID: chunks of samples, references, and the walk of `ld3 evaluate`."""
