"""Kafka topics, through `confluent_kafka`, with JSON, Avro and a schema registry."""
