/** What a chat is asked with. The session remembers it, so that it is the same after a reload and in a copy. */
import type { Session } from "./wire";

export interface Settings {
  /** Empty: the server's default. */
  model: string;
  instructions: string;
}

/** Null: the session has none of its own. */
export function settingsOf(session: Session): Settings | null {
  const kept = session.metadata["page"] as Partial<Settings> | undefined;
  return kept ? { model: kept.model ?? "", instructions: kept.instructions ?? "" } : null;
}

/** The session's metadata with these settings in it. */
export function withSettings(metadata: Record<string, unknown>, settings: Settings): Record<string, unknown> {
  return { ...metadata, page: settings };
}
