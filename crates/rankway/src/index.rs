//! `rankway index`: look into the index of a running `up`.

use serde::{Deserialize, Serialize};

use crate::cli::{AdminArgs, IndexArgs, IndexCommand};
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::index_api::{ComparedRank, HeldAnswer, IndexAnswer, compare};
use crate::report::{print_json, print_line};

/// What is read of `/api/v1/workers`.
#[derive(Deserialize)]
struct WorkersAnswer {
    workers: Vec<KnownWorker>,
}

#[derive(Deserialize)]
struct KnownWorker {
    id: String,
    url: String,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary {
    ok: bool,
    ranks: usize,
    different: usize,
}

/// Runs the command.
pub(crate) fn run(args: IndexArgs) -> Result<(), Failure> {
    let IndexCommand::Verify { admin, json } = args.command;
    let ranks = crate::runtime()?.block_on(verify(&admin))?;
    if ranks.is_empty() {
        let why = "no engine is known yet: ask again, or see why on /api/v1/workers";
        return Err(anyhow::anyhow!(why).into());
    }
    let different = ranks.iter().filter(|it| !it.equal).count();
    for rank in &ranks {
        if json {
            print_json(rank)?;
        } else {
            print_line(&describe(rank))?;
        }
    }
    if json {
        print_json(&Summary {
            ok: different == 0,
            ranks: ranks.len(),
            different,
        })?;
    }
    match different {
        0 => Ok(()),
        _ => Err(anyhow::anyhow!(
            "the index differs from {different} of {} ranks; right after traffic it may lag, so ask again",
            ranks.len()
        )
        .into()),
    }
}

async fn verify(admin: &AdminArgs) -> anyhow::Result<Vec<ComparedRank>> {
    let client = JsonClient::of_admin(admin);
    let base = admin.admin_url.trim_end_matches('/');
    let known: WorkersAnswer = client.get(&format!("{base}/api/v1/workers")).await?;
    // Engines have no admin token.
    let engines = JsonClient::of_engines();
    let mut ranks = Vec::new();
    for worker in known.workers {
        let held: HeldAnswer = engines
            .get(&format!("{}/debug/kv_blocks", worker.url))
            .await?;
        let index: IndexAnswer = client.get(&format!("{base}/api/v1/index")).await?;
        ranks.extend(compare(&worker.id, &held, &index));
    }
    Ok(ranks)
}

fn describe(rank: &ComparedRank) -> String {
    let verdict = if rank.equal { "equal" } else { "DIFFERENT" };
    format!(
        "{}/{}: engine {} blocks, index {} blocks ({}), {verdict}",
        rank.worker, rank.dp_rank, rank.engine_blocks, rank.index_blocks, rank.state
    )
}
