"""The rendezvous over HTTP: client, proxy, Decode, metaserver, Prefill (docs/serving.md)."""
