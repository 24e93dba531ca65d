//! `GET /props`: what a server is.

use domain::ModelName;
use serde::Deserialize;

use crate::gauges::MAX_RANKS;
use crate::keys::has_any;

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Props {
    /// Its build, such as `b4567-0fd7ca7`; `b0-unknown` where it was built outside its repository.
    pub version: String,
    /// How many requests it serves at once.
    pub slots: u32,
    /// Tokens that one slot can hold.
    pub context: u32,
    /// The name by which clients ask for its model, where it is one: a server without an alias gives its file's
    /// path, which it accepts like any other name.
    pub model: Option<ModelName>,
}

/// Why an answer is not llama.cpp's.
#[derive(Debug, thiserror::Error)]
pub enum PropsError {
    /// It lacks what every llama.cpp says, or has it in another shape.
    #[error("read the server's properties")]
    Json(#[from] serde_json::Error),
    /// It has no slots, or more than any server has.
    #[error("{slots} slots are none or more than {MAX_RANKS}")]
    Slots {
        /// How many.
        slots: u32,
    },
}

#[derive(Deserialize)]
struct Wire {
    total_slots: u32,
    default_generation_settings: Settings,
    model_alias: Option<String>,
    #[serde(default)]
    build_info: String,
}

#[derive(Deserialize)]
struct Settings {
    n_ctx: u32,
}

/// Whether the answer to `GET /props` is llama.cpp's, readable or not.
pub fn is_props(body: &[u8]) -> bool {
    has_any(body, &["total_slots", "default_generation_settings"])
}

/// Reads the answer to `GET /props`. Anything that is not llama.cpp's is an error.
pub fn parse_props(body: &[u8]) -> Result<Props, PropsError> {
    let wire: Wire = serde_json::from_slice(body)?;
    let slots = wire.total_slots;
    if slots == 0 || MAX_RANKS < slots as usize {
        return Err(PropsError::Slots { slots });
    }
    Ok(Props {
        version: wire.build_info,
        slots,
        context: wire.default_generation_settings.n_ctx,
        model: wire.model_alias.and_then(|alias| alias.parse().ok()),
    })
}
