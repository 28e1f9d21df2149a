"""What crosses between ranks: plan, codec, transport, and the autograd face of the exchange."""
