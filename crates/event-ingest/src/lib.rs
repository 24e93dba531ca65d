//! event-ingest
