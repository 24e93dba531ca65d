//! `rankway up`: serve.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rankway::suite::{Suite, SuiteConfig};
use service_kit::{Ended, Process};
use tokio::net::TcpListener;
use tracing::{info, warn};
use worker_adapter::WorkerConfig;

use crate::cli::UpArgs;
use crate::failure::Failure;
use crate::index_api;
use crate::settings::{Own, Settings};

/// How often an engine that does not answer is asked again.
const ENGINE_POLL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: UpArgs) -> Result<(), Failure> {
    let settings = Settings::read(&args.settings, Own::default())?;
    settings.starts_up()?;
    service_kit::init_logging("info").map_err(Failure::wrong_use)?;
    settings.warn();
    crate::runtime()?.block_on(serve(settings))?;
    Ok(())
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let admin = service_kit::listen(settings.admin.listen, "admin.listen").await?;
    let process = Process::draining(Duration::from_secs(settings.router.drain_seconds));
    let suite = Suite::start(suite_config(&settings), &process).await?;
    let admin_address = serve_admin(admin, &suite, &settings, &process)?;
    let router = &suite.routers[0];
    info!(
        api = %format!("http://{}", router.address()),
        admin = %format!("http://{admin_address}"),
        data_dir = %settings.data_dir.display(),
        policy = %settings.router.policy,
        "serving"
    );
    let patience = Duration::from_secs(settings.engine_wait_seconds);
    let ended = process
        .run_until(first_engine(settings.adapter().workers, patience))
        .await;
    suite.close().await;
    match ended? {
        Ended::Signal => info!("ended"),
        Ended::Done(never) => match never {},
    }
    Ok(())
}

fn suite_config(settings: &Settings) -> SuiteConfig {
    SuiteConfig {
        data_dir: settings.data_dir.clone(),
        adapter: settings.adapter(),
        affinity_secret: settings.affinity.secret.clone(),
        routers: vec![settings.router.clone()],
    }
}

fn serve_admin(
    listener: TcpListener,
    suite: &Suite,
    settings: &Settings,
    process: &Process,
) -> anyhow::Result<SocketAddr> {
    let address = listener.local_addr().context("read the admin address")?;
    let routes = service_kit::admin_routes(suite.context.clone())
        .merge(suite.routers[0].admin_routes())
        .merge(index_api::routes(suite.index.clone()))
        .merge(suite.index_routes.clone());
    let routes = service_kit::protect(routes, settings.admin.token.clone());
    let shutdown = process.shutdown();
    process.spawn("admin", async move {
        service_kit::serve(listener, routes, shutdown).await;
        Ok(())
    });
    Ok(address)
}

/// Never resolves once an engine has answered; fails when none does. Those that are missing then may come
/// later: the adapter goes on asking.
async fn first_engine(
    workers: Vec<WorkerConfig>,
    patience: Duration,
) -> anyhow::Result<std::convert::Infallible> {
    let ask = |worker: WorkerConfig| async move {
        let mut last = None;
        let answered = tokio::time::timeout(patience, async {
            loop {
                match worker_adapter::probe(&worker).await {
                    Ok(found) => return found,
                    Err(error) => last = Some(error),
                }
                tokio::time::sleep(ENGINE_POLL).await;
            }
        });
        match answered.await {
            Ok(found) => Ok(found),
            Err(_) => Err(last.map_or("no answer".to_owned(), |error| {
                format!("{:#}", anyhow::Error::new(error))
            })),
        }
    };
    let mut asked: FuturesUnordered<_> = workers.into_iter().map(ask).collect();
    let mut silent = Vec::new();
    let mut found_one = false;
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(worker) => {
                found_one = true;
                info!(worker = %worker.id, model = %worker.model, ranks = worker.dp_size, "engine found");
            }
            Err(why) => silent.push(why),
        }
    }
    let silent = silent.join("; ");
    if !found_one {
        anyhow::bail!("no engine answered within {patience:?}: {silent}");
    }
    if !silent.is_empty() {
        warn!(%silent, "going on without some engines; they are asked again");
    }
    std::future::pending().await
}
