"""Deployment automation for SGLang servers with speculative decoding."""
