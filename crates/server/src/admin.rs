//! Administration without a running server, for users with access to the store: the first token, and the parts of other
//! engines' work.

use anyhow::{Result, bail, ensure};
use api::http::TokenRequest;
use query::Scope;

use crate::analyze::AnalyzeError;
use crate::auth::Auth;
use crate::object_names::{DayWindow, RAW, StoredWindow, day_of_prefix};
use crate::store::Created;
use crate::{Config, Role, Server, open_store, runtime};

/// Makes a token, for who has access to the store itself: the first admin.
///
/// # Errors
/// When the store can't be opened or written.
pub fn make_token(config: &Config, role: Role, name: &str, days: Option<u32>) -> Result<String> {
    runtime()?.block_on(async {
        let store = open_store(config)?;
        let auth = Auth::new(store);
        let request = TokenRequest { role, name: name.to_owned(), days };
        Ok(auth.make_token(request).await?.token)
    })
}

/// Analyses stored windows and stores their results, if there are none yet. Says of each what became of it.
///
/// # Errors
/// When there is no such window, or the store or this machine fails. A window that can't be analysed is no error: it is set
/// aside, as the server does.
pub fn analyze(config: Config, windows: &[StoredWindow], said: &mut dyn FnMut(&str)) -> Result<()> {
    with_server(config, async |server| {
        for window in windows {
            let placed = place(server, window).await?;
            let what = match server.analyze(&placed).await {
                Ok(Created::Now) => "analysed".to_owned(),
                Ok(Created::Before) => "known".to_owned(),
                Err(AnalyzeError::Window(reason)) => {
                    server.note_failed(&placed, &reason).await?;
                    format!("failed: {reason}")
                }
                Err(error) => return Err(error.into()),
            };
            said(&format!("{} {what}", placed.id));
        }
        Ok(())
    })
}

/// Names of the stored windows that have no results, newest days first.
///
/// # Errors
/// When the store fails.
pub fn left(config: Config) -> Result<Vec<String>> {
    with_server(config, async |server| {
        let mut names = Vec::new();
        server.without_results(&mut |_, window| names.push(window.raw().to_string())).await?;
        Ok(names)
    })
}

/// Names of the objects that hold a table's rows, each row once, and what is missing.
///
/// # Errors
/// When there is no such table, or the store fails.
pub fn objects(config: Config, table: &str, scope: &Scope) -> Result<(Vec<String>, Vec<String>)> {
    with_server(config, async |server| Ok(server.engine.objects(table, scope).await?))
}

fn with_server<T>(config: Config, work: impl AsyncFnOnce(&Server) -> Result<T>) -> Result<T> {
    // A store that is opened is made: here one that is not there has another name.
    let is_there = config.store.contains("://") || std::path::Path::new(&config.store).is_dir();
    ensure!(is_there, "there is no store {}", config.store);
    runtime()?.block_on(async {
        let scratch = tempfile::tempdir()?;
        let server = Server::open(Config { state: scratch.path().to_owned(), ..config })?;
        work(&server).await
    })
}

async fn place(server: &Server, window: &StoredWindow) -> Result<DayWindow> {
    let id = window.id.clone();
    if let Some(day) = window.day {
        return Ok(DayWindow { day, id });
    }
    for day in server.store.prefixes(RAW).await?.iter().rev().filter_map(day_of_prefix) {
        let placed = DayWindow { day, id: id.clone() };
        if server.store.size(&placed.raw()).await?.is_some() {
            return Ok(placed);
        }
    }
    bail!("there is no window {id}")
}
