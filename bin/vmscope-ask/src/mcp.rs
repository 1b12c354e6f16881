//! `vmscope mcp`: the tools on standard input and output.

use std::sync::Arc;

use anyhow::Context;
use ask::{Answer, Answers, Arguments, AskError, Question, Tools};
use rmcp::ServiceExt;
use tokio::sync::Semaphore;

use crate::opened::Opened;

impl Answers for Opened {
    fn questions(&self) -> Vec<Question> {
        self.questions().collect()
    }

    fn answer(&self, question: Question, arguments: &Arguments) -> Result<Answer, AskError> {
        self.answer(question, arguments)
    }
}

/// Serves until standard input ends.
pub(crate) fn serve(opened: Opened) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the runtime")?;
    let tools = Tools::new(opened, Arc::new(Semaphore::new(1)));
    let served = runtime.block_on(async {
        let service = tools.serve(rmcp::transport::stdio()).await;
        let service = service.context("failed to agree on the protocol with the client")?;
        service.waiting().await.context("failed to serve the client").map(drop)
    });
    // A read of standard input can't be cancelled.
    runtime.shutdown_background();
    served
}
