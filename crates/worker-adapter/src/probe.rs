//! Finds out what an engine is. What it does not say, the settings must; what both say must agree.

mod asking;
mod found;
mod llama_cpp;
mod sglang;
mod tensorrt_llm;
mod vllm;

use domain::{Worker, WorkerId};
use engine_wire::Scrape;
use engine_wire::llama_cpp::is_props;
use engine_wire::sglang::is_server_info;
use engine_wire::trtllm::lists_models;

use self::asking::Asking;
use crate::address::EngineUrl;
use crate::client::{BoxError, EngineClient};
use crate::config::{ConfigError, EngineName, WorkerConfig};

/// Why an engine cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The settings give it no name.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nobody answers there.
    #[error("no engine answers at {url}: start it, or correct `url`")]
    Unreachable {
        /// Where.
        url: EngineUrl,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// It has stopped being healthy.
    #[error("worker {worker} is not healthy any more")]
    Unhealthy {
        /// Which worker.
        worker: WorkerId,
    },
    /// It does not say what it is yet.
    #[error("the engine at {url} is loading its model")]
    Loading {
        /// Where.
        url: EngineUrl,
    },
    /// It answers something else than its kind does.
    #[error("{url}{path} answers {status}: is {engine}'s HTTP API there?")]
    Status {
        /// Whose answer.
        url: EngineUrl,
        /// The path asked for.
        path: &'static str,
        /// The HTTP status.
        status: u16,
        /// What it is said or thought to be.
        engine: EngineName,
    },
    /// It answers what its kind does not.
    #[error("{url}{path} answers what {engine} does not")]
    Answer {
        /// Whose answer.
        url: EngineUrl,
        /// The path asked for.
        path: &'static str,
        /// What it is said or thought to be.
        engine: EngineName,
        /// What is wrong with it.
        #[source]
        source: BoxError,
    },
    /// What it runs cannot be used.
    #[error("worker {worker} runs {engine} {why}")]
    Unusable {
        /// Which worker.
        worker: WorkerId,
        /// The engine.
        engine: EngineName,
        /// Its version and what is wrong with it.
        why: String,
    },
    /// Neither the engine nor the settings say it.
    #[error("worker {worker} does not say its {what}: set `{key}`")]
    Missing {
        /// Which worker.
        worker: WorkerId,
        /// What is not known.
        what: &'static str,
        /// The key to set.
        key: &'static str,
    },
    /// The engine says one thing, the settings another; or the settings cannot be.
    #[error("worker {worker} has {found}: correct `{key}`")]
    Mismatch {
        /// Which worker.
        worker: WorkerId,
        /// What there is.
        found: String,
        /// The key to correct.
        key: &'static str,
    },
}

/// Asks the engine of `config` what it is. The answer is [`domain::TargetState::Warming`] while it is not healthy
/// yet; its epoch and lease are not known here.
pub async fn probe(config: &WorkerConfig) -> Result<Worker, ProbeError> {
    let client = EngineClient::new();
    let engine = identify(&client, config).await?;
    probe_as(&client, config, engine).await
}

/// Which engine it is: what it shows itself to be, which the settings must not contradict; else what they say, else
/// vLLM, of which the next questions tell whether it is one.
pub(crate) async fn identify(
    client: &EngineClient,
    config: &WorkerConfig,
) -> Result<EngineName, ProbeError> {
    let asking = Asking {
        client,
        url: &config.url,
        engine: config.engine.unwrap_or(EngineName::Vllm),
    };
    match (config.engine, recognise(asking).await?) {
        (Some(set), Some(found)) if set != found => Err(ProbeError::Mismatch {
            worker: config.worker_id()?,
            found: format!("{found} at its url, not {set}"),
            key: "engine",
        }),
        (set, found) => Ok(set.or(found).unwrap_or(EngineName::Vllm)),
    }
}

/// SGLang if `/server_info` is that's, else llama.cpp if `/props` is that's, else TensorRT-LLM if its models are. Whether
/// all of an answer can be read is another question: what is wrong with it is not to be told of another engine.
async fn recognise(asking: Asking<'_>) -> Result<Option<EngineName>, ProbeError> {
    // Of a vLLM in development mode this is answered too, in another form.
    let info = asking.ask("/server_info").await?;
    if info.status == 200 && is_server_info(&info.body) {
        return Ok(Some(EngineName::Sglang));
    }
    // Its name before 0.5.6, which nobody else answers.
    if info.status == 404 {
        let old = asking.optional("/get_server_info").await?;
        if old.is_some_and(|info| is_server_info(&info)) {
            return Ok(Some(EngineName::Sglang));
        }
    }
    let props = asking.ask("/props").await?;
    match (info.status, props.status) {
        (_, 200) if is_props(&props.body) => Ok(Some(EngineName::LlamaCpp)),
        // llama.cpp answers everything like this until it has loaded its model.
        (503, 503) => Err(ProbeError::Loading {
            url: asking.url.clone(),
        }),
        _ => {
            let models = asking.optional("/v1/models").await?;
            let of_trtllm = models.is_some_and(|models| lists_models(&models));
            Ok(of_trtllm.then_some(EngineName::TensorRtLlm))
        }
    }
}

/// Asks an engine that is known to be `engine`, or said to be.
pub(crate) async fn probe_as(
    client: &EngineClient,
    config: &WorkerConfig,
    engine: EngineName,
) -> Result<Worker, ProbeError> {
    let id = config.worker_id()?;
    let url = &config.url;
    let asking = Asking {
        client,
        url,
        engine,
    };
    let found = match engine {
        EngineName::Vllm => vllm::ask(asking).await?,
        EngineName::Sglang => sglang::ask(asking, &id).await?,
        EngineName::LlamaCpp => llama_cpp::ask(asking).await?,
        EngineName::TensorRtLlm => tensorrt_llm::ask(asking, &id, config).await?,
    };
    found::describe(id, config, engine, found)
}

/// How loaded each rank is, as far as the engine says.
pub(crate) async fn ask_load(
    client: &EngineClient,
    config: &WorkerConfig,
    engine: EngineName,
) -> Result<Scrape, ProbeError> {
    let url = &config.url;
    let asking = Asking {
        client,
        url,
        engine,
    };
    match engine {
        EngineName::Vllm => vllm::ask_load(asking).await,
        EngineName::Sglang => sglang::ask_load(asking).await,
        EngineName::LlamaCpp => llama_cpp::ask_load(asking).await,
        EngineName::TensorRtLlm => tensorrt_llm::ask_load(asking, config).await,
    }
}
