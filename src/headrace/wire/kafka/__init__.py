"""The Kafka protocol: frames, message declarations and the codec compiled from them."""
