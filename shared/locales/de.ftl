# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }: { $detail }

NOTFOUND_001 = Den Job gibt es nicht
NOTFOUND_003 = Den Trigger gibt es nicht
NOTFOUND_004 = Die Aufgabe gibt es nicht, oder sie ist beendet
NOTFOUND_005 = Der Job stammt aus keiner Datei oder hatte keine solche Version und kann nicht wiederhergestellt werden
NOTFOUND_006 = Den Runner gibt es nicht
NOTFOUND_008 = Das Token gibt es nicht
NOTFOUND_009 = Niemand hält diese Lease
NOTFOUND_010 = Der Scheduler hat keinen Alarmkanal mit diesem Namen
NOTFOUND_011 = Den Kalender oder die Nebenläufigkeitsgruppe gibt es nicht
VALIDATION_001 = Die Definition eines Jobs, eines Kalenders oder einer Nebenläufigkeitsgruppe ist falsch
VALIDATION_002 = Eine Seitengröße oder ein Seitentoken liegt außerhalb des erlaubten Bereichs
VALIDATION_003 = Ein Feld der Anfrage ist falsch
VALIDATION_004 = Ein Stapel ist leer oder zu groß
CONFLICT_001 = Der Job läuft, und seine Regel erlaubt jetzt keinen weiteren Lauf
CONFLICT_002 = Jemand anderes hält die Lease, oder sie ist verloren
CONFLICT_004 = Ein anderer Prozess hat diese Runner-Kennung
CONFLICT_005 = Der Idempotenzschlüssel wurde mit einem anderen Inhalt benutzt
CONFLICT_007 = Ein Token mit diesem Namen gibt es schon
CONFLICT_008 = Es ist das letzte Admin-Token; ohne es könnte niemand mehr Token anlegen
CONFLICT_009 = Es wurde geändert seit der Version, die der Aufruf erwartet
CONFLICT_010 = Der Host meldet sich noch, oder er hat Aufgaben, die niemand für verloren erklärt hat
CONFLICT_011 = Der Kalender oder die Nebenläufigkeitsgruppe wird benutzt
CONFLICT_012 = Jemand hat die Lease entzogen
UNAVAILABLE_001 = Dieser Scheduler startet gerade oder wird beendet
UNAVAILABLE_003 = Die Datenbank ist nicht erreichbar oder ausgelastet
UNAVAILABLE_006 = Die Datenbank nimmt nichts mehr an: Datenträger voll oder schreibgeschützt
UNAVAILABLE_007 = Zu viele Anfragen warten; bitte noch einmal versuchen
AUTH_001 = Der Aufruf hat kein Token, oder es ist unbekannt, abgelaufen oder widerrufen
AUTH_002 = Die Rolle des Tokens erlaubt diesen Aufruf nicht
UNEXPECTED_001 = Ein Fehler, der nicht vorkommen sollte; siehe das Log des Schedulers
