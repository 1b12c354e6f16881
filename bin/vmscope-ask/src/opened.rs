//! What questions are about: a folder or a server.

use std::path::Path;
use std::time::SystemTime;

use agent::{EnrollError, User, login_folder};
use anyhow::Context;
use ask::{
    Answer, Arguments, AskError, Fleet, Question, RecordingSource, Request, Source, TraceSource,
};

/// A recording, a trace, or a recording with a trace in it; or a server.
pub(crate) struct Opened {
    source: Option<Box<dyn Source + Send + Sync>>,
    trace: Option<TraceSource>,
}

impl Opened {
    /// A recording's or a trace's folder.
    pub(crate) fn folder(folder: &Path) -> Result<Self, AskError> {
        if folder.join("trace.json").is_file() {
            return Ok(Self { source: None, trace: Some(TraceSource::open(folder)?) });
        }
        let source = RecordingSource::open(folder)?;
        let inside = folder.join("trace");
        let trace = inside.is_dir().then(|| TraceSource::open(&inside)).transpose()?;
        Ok(Self { source: Some(Box::new(source)), trace })
    }

    /// The server of a login.
    pub(crate) fn server(login: Option<&Path>) -> anyhow::Result<Self> {
        let folder =
            login_folder(login).context("neither XDG_CONFIG_HOME nor HOME is set: give --login")?;
        let user = User::open(&folder)?.with_context(|| {
            format!("no login is kept in {}: use `vmscope query login` first", folder.display())
        })?;
        let page = user.url().to_owned();
        let client = move |request: &Request<'_>| {
            let answer = match request {
                Request::Get { path, parameters } => user.get(path, parameters),
                Request::Post { path, json } => user.post(path, json),
            };
            answer.map_err(|error| reason(&error))
        };
        Ok(Self { source: Some(Box::new(Fleet::new(client, &page, now_us))), trace: None })
    }

    /// The questions that it can answer.
    pub(crate) fn questions(&self) -> impl Iterator<Item = Question> {
        let is_about_trace = |question: &Question| *question == Question::JobWaits;
        let all = Question::ALL.iter().copied();
        all.filter(move |question| match is_about_trace(question) {
            true => self.trace.is_some(),
            false => self.source.is_some(),
        })
    }

    /// Answers a question.
    pub(crate) fn answer(
        &self,
        question: Question,
        arguments: &Arguments,
    ) -> Result<Answer, AskError> {
        match (&self.source, &self.trace) {
            (Some(source), None) => ask::answer(source.as_ref(), question, arguments),
            (Some(source), Some(_)) if question != Question::JobWaits => {
                ask::answer(source.as_ref(), question, arguments)
            }
            (_, Some(trace)) => trace.answer(question, arguments),
            (None, None) => Err(AskError::Source("nothing is open".to_owned())),
        }
    }
}

/// A server's refusal is about what the question made of the arguments.
fn reason(error: &EnrollError) -> AskError {
    match error {
        EnrollError::Refused { status: 400 | 404 | 422, .. } => {
            AskError::Arguments(error.to_string())
        }
        error => AskError::Source(error.to_string()),
    }
}

fn now_us() -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}
