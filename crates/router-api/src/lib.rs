//! The router: OpenAI's API in front, and behind it the decision which rank of which engine serves.

mod admin;
mod bindings;
mod body;
mod chain;
mod config;
mod drain;
mod emptied;
mod error;
mod evidence;
mod follow;
mod identity;
mod infer;
mod intake;
mod leases;
mod ledger;
mod metrics;
mod mind;
mod mismatch;
mod openai;
mod outcome;
mod place;
mod presence;
mod public;
mod query;
mod reach;
mod replica;
mod reply;
mod route;
mod run;
mod service;
mod tokenizer;
mod turn;
mod view;

pub use config::Config;
pub use service::{BindError, Handle, RouterApi};
