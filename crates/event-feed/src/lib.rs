//! event-feed
