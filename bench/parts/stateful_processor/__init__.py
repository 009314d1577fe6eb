"""Of `bench/stateful_processor.py`: a StatefulProcessor, and Ferry's job with it."""
