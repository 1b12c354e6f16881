//! What chat services take as a webhook's message, each in its own form.
//!
//! Names in alerts are chosen by strangers: each form shows them as they are, without markup, and notifies no one by them.
//! Where a form has plain text, that is used; elsewhere each mark is escaped.

use serde_json::{Value, json};
use table::{NO_MENTION, push_markdown};

use super::Alert;
use super::webhook::Event;

/// What a receiver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JSON with a member for each fact.
    #[default]
    Generic,
    Slack,
    Discord,
    Mattermost,
    /// A workflow of Microsoft Teams that posts an Adaptive Card.
    Teams,
}

/// Of a message's text, in units of UTF-16, as services count. Slack: <https://docs.slack.dev/reference/block-kit/blocks/section-block>.
const MAX_SLACK: usize = 3000;
/// <https://discord.com/developers/docs/resources/webhook#execute-webhook>
const MAX_DISCORD: usize = 2000;
/// Older servers' limit; newer ones take 16,383.
const MAX_MATTERMOST: usize = 4000;
/// A message of Teams has 28 KB in all; a unit has 6 bytes at most.
const MAX_TEAMS: usize = 4000;
/// Discord's flag against previews of links.
const SUPPRESS_EMBEDS: u32 = 1 << 2;
const CUT: &str = "...";

impl Format {
    /// Of `Generic` there is another one.
    pub(super) fn message(self, alert: &Alert, event: Event) -> Value {
        let text = text(alert, event);
        let link = alert.link.as_deref();
        match self {
            Self::Generic => super::webhook::json(alert, event),
            Self::Slack => slack(&text, link),
            Self::Discord => json!({
                "content": with_link(&text, link, MAX_DISCORD),
                "allowed_mentions": { "parse": [] },
                "flags": SUPPRESS_EMBEDS,
            }),
            Self::Mattermost => json!({ "text": with_link(&text, link, MAX_MATTERMOST) }),
            Self::Teams => teams(&text, link),
        }
    }
}

/// No line begins with a stranger's text.
fn text(alert: &Alert, event: Event) -> String {
    let mut lines = vec![
        format!("{} ({}): {}", event.name(), alert.kind.severity, alert.summary),
        format!("Cause: {}", alert.cause),
    ];
    lines.extend(alert.advice.iter().map(|advice| format!("Advice: {advice}")));
    lines.extend(alert.vm_labels.iter().map(|(name, value)| format!("{name}: {value}")));
    lines.join("\n")
}

fn slack(text: &str, link: Option<&str>) -> Value {
    let plain =
        |most| json!({ "type": "plain_text", "text": cut(text, most, as_it_is), "emoji": false });
    let mut blocks = vec![json!({ "type": "section", "text": plain(MAX_SLACK) })];
    if let Some(link) = link {
        let text = format!("<{}|Open in vmscope>", cut(link, MAX_SLACK - 32, entity));
        blocks.push(json!({ "type": "section", "text": { "type": "mrkdwn", "text": text } }));
    }
    // The text of notifications.
    let text = cut(text, MAX_SLACK, entity);
    json!({
        "text": text, "blocks": blocks, "mrkdwn": false, "parse": "none", "link_names": false,
        "unfurl_links": false, "unfurl_media": false,
    })
}

/// Text runs have no markup.
fn teams(text: &str, link: Option<&str>) -> Value {
    let text = cut(text, MAX_TEAMS, as_it_is);
    let line =
        |line| json!({ "type": "RichTextBlock", "inlines": [{ "type": "TextRun", "text": line }] });
    let mut card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": text.lines().map(line).collect::<Vec<_>>(),
    });
    if let Some(link) = link {
        card["actions"] =
            json!([{ "type": "Action.OpenUrl", "title": "Open in vmscope", "url": link }]);
    }
    let kind = "application/vnd.microsoft.card.adaptive";
    json!({ "type": "message", "attachments": [{ "contentType": kind, "contentUrl": null, "content": card }] })
}

/// As Markdown. The link is the operator's own.
fn with_link(text: &str, link: Option<&str>, most: usize) -> String {
    let link = link.map(|link| format!("\n<{link}>")).unwrap_or_default();
    let left = most.saturating_sub(link.encode_utf16().count());
    cut(text, left, push_markdown) + &link
}

/// Each character as it is to be written, up to a length; no escape is cut in two.
fn cut(text: &str, most: usize, escape: impl Fn(char, &mut String)) -> String {
    let mut all = String::new();
    let (mut length, mut fitting) = (0, 0);
    for character in text.chars() {
        let from = all.len();
        escape(character, &mut all);
        length += all[from..].encode_utf16().count();
        if length + CUT.len() <= most {
            fitting = all.len();
        }
        if most < length {
            all.truncate(fitting);
            return all + CUT;
        }
    }
    all
}

fn as_it_is(character: char, out: &mut String) {
    match character {
        '@' => out.push_str(NO_MENTION),
        _ => out.push(character),
    }
}

fn entity(character: char, out: &mut String) {
    match character {
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        _ => as_it_is(character, out),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::alerts::test::found;
    use crate::operator_notes::OperatorNotes;

    const ALL: [Format; 4] = [Format::Slack, Format::Discord, Format::Mattermost, Format::Teams];

    fn message(format: Format, name: &str) -> Value {
        let url = Some("https://fleet.example");
        let alert = Alert::new(&found(7, name), url, &OperatorNotes::default(), 0);
        format.message(&alert, Event::Firing)
    }

    #[test]
    fn each_service_gets_its_form() {
        let link = "https://fleet.example/#/finding/0000000000000007";
        let slack = message(Format::Slack, "db");
        assert_eq!(slack["blocks"][0]["text"]["type"], "plain_text");
        let first = slack["blocks"][0]["text"]["text"].as_str().unwrap();
        assert!(first.starts_with("firing (warning): kvm1/db: steal type 1 changed"), "{first}");
        assert_eq!(slack["blocks"][1]["text"]["text"], format!("<{link}|Open in vmscope>"));
        let discord = message(Format::Discord, "db");
        assert_eq!(discord["allowed_mentions"], json!({ "parse": [] }));
        assert!(discord["content"].as_str().unwrap().ends_with(&format!("\n<{link}>")));
        let mattermost = message(Format::Mattermost, "db");
        assert_eq!(mattermost["text"], discord["content"]);
        let card = message(Format::Teams, "db")["attachments"][0]["content"].clone();
        assert_eq!(card["body"][0]["inlines"][0]["type"], "TextRun");
        assert_eq!(card["actions"][0]["url"], link);
        assert_eq!(message(Format::Generic, "db")["vm"], "db");
    }

    #[test]
    fn names_notify_no_one_and_are_no_markup() {
        let evil = "@everyone <!channel> <@U1> [a](http://b) **c** `d` #e :f: <at>g</at> |h| ~i~ &";
        let texts = ALL.map(|format| message(format, evil).to_string());
        for text in &texts {
            assert!(!text.contains("@everyone") && !text.contains("@U1"), "{text}");
        }
        let [slack, discord, mattermost, teams] = ALL.map(|format| message(format, evil));
        let notified = slack["text"].as_str().unwrap();
        assert!(notified.contains("&lt;!channel&gt;") && !notified.contains('<'), "{notified}");
        for text in [&discord["content"], &mattermost["text"]] {
            let text = text.as_str().unwrap();
            for mark in [r"\<\!channel\>", r"\[a\]\(http\://b\)", r"\*\*c\*\*", r"\`d\`", r"\#e"] {
                assert!(text.contains(mark), "{text}");
            }
        }
        // Where there is no markup, names are as they are.
        for text in [slack["blocks"][0].to_string(), teams.to_string()] {
            assert!(text.contains("[a](http://b) **c** `d`"), "{text}");
        }
    }

    #[test]
    fn messages_are_as_long_as_services_take() {
        for name in ["*", "&", "\u{1f600}", "\\", "@", "\u{1b}"].map(|one| one.repeat(9000)) {
            let url = format!("https://fleet.example/{}", "x".repeat(300));
            let mut alert = Alert::new(&found(7, &name), Some(&url), &OperatorNotes::default(), 0);
            alert.advice = vec![super::super::short(&name, 1000); 3];
            alert.cause = super::super::short(&name, 1000);
            let of = |format: Format| format.message(&alert, Event::Resolved);
            let units = |value: &Value| value.as_str().unwrap().encode_utf16().count();
            let slack = of(Format::Slack);
            assert!(
                units(&slack["text"]) <= 3000 && units(&slack["blocks"][0]["text"]["text"]) <= 3000
            );
            let discord = of(Format::Discord);
            assert!(units(&discord["content"]) <= 2000);
            let content = discord["content"].as_str().unwrap();
            assert!(content.ends_with('>') && content.contains("...\n<https://"), "{content}");
            assert!(units(&of(Format::Mattermost)["text"]) <= 4000);
            assert!(of(Format::Teams).to_string().len() <= 28_000);
        }
    }

    #[test]
    fn no_escape_is_cut_in_two() {
        assert_eq!(cut("a&b", 7, entity), "a&amp;b");
        assert_eq!(cut("a&bc", 7, entity), "a...");
        assert_eq!(cut("abcd", 4, push_markdown), "abcd");
        assert_eq!(cut("abcde", 4, push_markdown), "a...");
        assert_eq!(cut("**", 3, push_markdown), "...");
    }
}
