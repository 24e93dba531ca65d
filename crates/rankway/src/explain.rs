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
    let runtime = crate::runtime()?;
    if args.json {
        let decision: Value = runtime.block_on(client.get(&url))?;
        print_json(&decision)?;
    } else {
        let text = runtime.block_on(client.get_text(&url))?;
        print_line(text.trim_end())?;
    }
    Ok(())
}
