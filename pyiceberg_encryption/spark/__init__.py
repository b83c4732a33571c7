"""Encrypted tables in Apache Spark."""
