//! The events that break a line, and those that do not.

use super::*;
use weir_core::roster::InstanceId;

const ASKER: Rank = Rank(0);
const ASKED: Rank = Rank(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn actions(lines: &mut Lines) -> Vec<LineAction> {
    std::iter::from_fn(|| lines.next_action()).collect()
}

/// The head and content of an action's packet as the other server receives it.
fn head(from: Rank, life: u64, step: &LineAction) -> (PacketHead, PacketContent) {
    let LineAction::Send {
        to,
        life: to_life,
        line,
        content,
    } = step
    else {
        panic!("nothing is said: {step:?}");
    };
    let head = PacketHead {
        instance: InstanceId([0; 16]),
        from,
        to: *to,
        from_life: life,
        to_life: *to_life,
        line: *line,
    };
    (head, content.clone())
}

/// Two servers, one of which has dialled the other at 0.
fn dialled() -> (Lines, Lines) {
    let mut asker = Lines::new(5, vec![1], Timing::default());
    let mut asked = Lines::new(6, vec![2], Timing::default());
    asker.dial(ms(0), ASKED);
    let said = actions(&mut asker);
    let (hello, content) = head(ASKER, 5, &said[0]);
    assert_eq!(content, PacketContent::Hello(vec![1]));
    asked.greeted(&hello, None);
    let (welcome, _) = head(ASKED, 6, &actions(&mut asked)[0]);
    asker.welcomed(ms(1), &welcome);
    assert_eq!(actions(&mut asker), [LineAction::Connected(ASKED, 6)]);
    asker.welcomed(ms(1), &welcome);
    assert_eq!(actions(&mut asker), [], "it counts once");
    (asker, asked)
}

/// The next ping, and its way to the other and back.
fn ping(asker: &mut Lines, asked: &mut Lines) -> Vec<LineAction> {
    let now = asker.due().unwrap();
    asker.check_deadlines(now, |_| true);
    let said = actions(asker);
    let (head_there, content) = head(ASKER, 5, &said[0]);
    let PacketContent::Ping { number, .. } = content else {
        panic!("no ping: {content:?}");
    };
    match asked.check_line(&head_there) {
        LineCheck::New => asked.accept(&head_there),
        LineCheck::Current => {}
        LineCheck::Stale => panic!("not heard"),
    }
    asked.pinged(&head_there, number);
    let said = actions(asked);
    let (head_back, content) = head(ASKED, 6, &said[0]);
    let PacketContent::Pong {
        number,
        received,
        replied,
    } = content
    else {
        panic!("no pong: {content:?}");
    };
    let counts = MessageCounts {
        requests: received,
        replies: replied,
    };
    asker.ponged(now, &head_back, number, counts);
    actions(asker)
}

fn is_broken(actions: &[LineAction]) -> bool {
    matches!(actions, [LineAction::ConnectionError(ASKED, _)])
}

#[test]
fn a_thread_that_did_not_run_blames_nobody() {
    let (mut asker, _) = dialled();
    asker.asked(ms(10), ASKED);
    asker.check_deadlines(ms(5000), |_| true);
    assert!(!is_broken(&actions(&mut asker)));
}

#[test]
fn who_is_asked_nothing_hears_nothing() {
    let (mut asker, mut asked) = dialled();
    assert_eq!(asker.due(), None);
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    asker.check_deadlines(ms(20_000), |_| false);
    assert_eq!(asker.due(), None);
}

#[test]
fn what_is_lost_is_missed_by_the_second_ping() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), [], "it may be on its way");
    assert!(is_broken(&ping(&mut asker, &mut asked)));
    assert_eq!(asker.due(), None);
}

#[test]
fn a_reply_that_is_lost_is_missed_too_and_one_that_came_is_not() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    asked.received(ASKER);
    asked.replied(ASKER);
    let (life, line) = asked.to_answer(ASKER).unwrap();
    let content = PacketContent::Redial; // any
    let to = ASKER;
    let reply = LineAction::Send {
        to,
        life,
        line,
        content,
    };
    assert!(asker.answered(ms(600), &head(ASKED, 6, &reply).0));
    for _ in 0..3 {
        assert_eq!(ping(&mut asker, &mut asked), []);
    }
    asked.replied(ASKER);
    assert_eq!(ping(&mut asker, &mut asked), []);
    assert!(is_broken(&ping(&mut asker, &mut asked)));
}

#[test]
fn silence_breaks_a_line_and_greetings_end() {
    let (mut asker, _) = dialled();
    asker.asked(ms(10), ASKED);
    let mut now = ms(0);
    while !actions(&mut asker).contains(&LineAction::ConnectionError(ASKED, ms(10))) {
        now = asker.due().unwrap();
        asker.check_deadlines(now, |_| true);
    }
    assert!(now >= ms(10) + asker.silence() && now < ms(10) + asker.silence() * 2);
    asker.dial(now, ASKED);
    let mut greetings = 0;
    loop {
        let said = actions(&mut asker);
        if is_broken(&said) {
            break;
        }
        greetings += said.len();
        let then = asker.due().unwrap();
        asker.check_deadlines(then, |_| true);
    }
    assert!((10..20).contains(&greetings), "{greetings}");
}

#[test]
fn who_has_another_life_says_so_and_old_lines_are_not_heard() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    let mut anew = Lines::new(7, vec![3], Timing::default());
    let (life, line) = asker.to_ask(ASKED).unwrap();
    let request = LineAction::Send {
        to: ASKED,
        life,
        line,
        content: PacketContent::Welcome, // any
    };
    let request = head(ASKER, 5, &request).0;
    assert_eq!(asked.check_line(&request), LineCheck::Current);
    assert_eq!(anew.check_line(&request), LineCheck::Stale);
    let (redial, content) = head(ASKED, 7, &actions(&mut anew)[0]);
    assert_eq!(content, PacketContent::Redial);
    asker.redial(ms(700), &redial);
    assert_eq!(
        actions(&mut asker),
        [LineAction::ConnectionError(ASKED, ms(700))]
    );
    asker.redial(ms(700), &redial);
    assert_eq!(actions(&mut asker), [], "that line has ended");
    let newer = PacketHead { line: 9, ..request };
    assert_eq!(asked.check_line(&newer), LineCheck::New);
    asked.accept(&newer);
    assert_eq!(
        asked.check_line(&request),
        LineCheck::Stale,
        "a line that was left"
    );
}
