//! The crate against captured and hand-made bytes of real engines.

#![cfg(test)]

mod corpus;
mod damage;
mod dialect;
mod llama_cpp;
mod meaning;
mod ranks;
mod replay;
mod round_trip;
mod sglang;
mod shapes;
mod tokens;
mod trtllm;
mod trtllm_worker;
