//! `rankway explain`: why a request went where it went.

use serde_json::Value;

use crate::cli::ExplainArgs;
use crate::client::JsonClient;
use crate::failure::Failure;
use crate::report::{print_json, print_line};

/// Runs the command.
pub(crate) fn run(args: ExplainArgs) -> Result<(), Failure> {
    let base = args.admin.admin_url.trim_end_matches('/');
    let url = format!("{base}/api/v1/decisions/{}", args.id);
    let client = JsonClient::of_admin(&args.admin);
    let decision: Value = crate::runtime()?.block_on(client.get(&url))?;
    if args.json {
        print_json(&decision)?;
    } else {
        print_line(&decision.to_string())?;
    }
    Ok(())
}
