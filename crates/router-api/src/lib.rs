//! router-api
