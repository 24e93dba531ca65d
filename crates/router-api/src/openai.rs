//! The OpenAI requests, read only as far as routing needs, and edited in place: what is not edited reaches
//! the engine byte for byte.

mod edit;
mod fields;
mod members;
mod ranks;
mod response_id;

pub(crate) use edit::{edit, without_salt};
pub(crate) use fields::{Fields, Prompt};
pub(crate) use ranks::without_ranks;
pub(crate) use response_id::ResponseId;
